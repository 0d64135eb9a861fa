// gomemcache, as Loki, Mimir and Tempo use it: "write" stores 100 chunks of 1 to 3 MB, "read"
// gets all of them at once, some times.
package main

import (
	"bytes"
	"fmt"
	"os"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
)

func chunk(number int) []byte {
	value := make([]byte, 1000000+number*20000)
	for i := range value {
		value[i] = byte(i * (number + 7) >> 3)
	}
	return value
}

func check(err error) {
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
}

func main() {
	client := memcache.New(os.Args[2])
	client.Timeout = 20 * time.Second
	var keys []string
	for number := 0; number < 100; number++ {
		keys = append(keys, fmt.Sprintf("fake/%d/chunk", number))
	}
	for round := 0; round < 3; round++ {
		if os.Args[1] == "write" {
			for number, key := range keys {
				check(client.Set(&memcache.Item{Key: key, Value: chunk(number)}))
			}
		}
		found, err := client.GetMulti(keys)
		check(err)
		for number, key := range keys {
			if found[key] == nil || !bytes.Equal(found[key].Value, chunk(number)) {
				fmt.Println("failed:", key)
				os.Exit(1)
			}
		}
	}
	fmt.Println("done")
}
