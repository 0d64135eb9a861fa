// gomemcache: "write" stores values, "read" checks that they are there after a restart.
package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
)

func check(ok bool, what string) {
	if !ok {
		fmt.Println("failed: " + what)
		os.Exit(1)
	}
}

func every(count int) []byte {
	value := make([]byte, count)
	for i := range value {
		value[i] = byte(i * 7)
	}
	return value
}

var (
	large   = every(1048576)
	longest = strings.Repeat("k", 250)
)

func has(client *memcache.Client, key string, value []byte) bool {
	item, err := client.Get(key)
	return err == nil && bytes.Equal(item.Value, value)
}

func write(client *memcache.Client) {
	check(client.Ping() == nil, "ping")
	check(client.Set(&memcache.Item{Key: "go/large", Value: large, Flags: 7}) == nil, "set")
	check(client.Set(&memcache.Item{Key: "go/empty", Value: nil}) == nil, "set empty")
	check(client.Set(&memcache.Item{Key: longest, Value: []byte("\r\nEND\r\n")}) == nil, "set longest")
	tooLarge := memcache.Item{Key: "go/too-large", Value: every(1048577)}
	check(client.Set(&tooLarge) != nil, "too large")
	check(client.Add(&memcache.Item{Key: "go/large", Value: nil}) == memcache.ErrNotStored, "add")
	check(client.Replace(&memcache.Item{Key: "go/none", Value: nil}) == memcache.ErrNotStored, "replace")

	check(client.Set(&memcache.Item{Key: "go/number", Value: []byte("41")}) == nil, "set number")
	number, err := client.Increment("go/number", 1)
	check(err == nil && number == 42, "increment")
	_, err = client.Decrement("go/none", 1)
	check(err == memcache.ErrCacheMiss, "decrement")
	check(client.Append(&memcache.Item{Key: "go/number", Value: []byte("b")}) == nil, "append")
	check(client.Prepend(&memcache.Item{Key: "go/number", Value: []byte("a")}) == nil, "prepend")
	check(has(client, "go/number", []byte("a42b")), "get")

	first, err := client.Get("go/number")
	check(err == nil, "get for cas")
	second, err := client.Get("go/number")
	check(err == nil, "get for cas")
	first.Value = []byte("first")
	check(client.CompareAndSwap(first) == nil, "cas")
	second.Value = []byte("second")
	check(client.CompareAndSwap(second) == memcache.ErrCASConflict, "cas of an old version")

	check(client.Set(&memcache.Item{Key: "go/short", Value: []byte("x"), Expiration: 1}) == nil, "set short")
	check(client.Touch("go/number", 1000) == nil, "touch")
	check(client.Delete("go/none") == memcache.ErrCacheMiss, "delete")
	for end := time.Now().Add(10 * time.Second); has(client, "go/short", []byte("x")); {
		check(time.Now().Before(end), "expiry")
		time.Sleep(10 * time.Millisecond)
	}
}

func read(client *memcache.Client) {
	found, err := client.GetMulti([]string{"go/large", "go/empty", "go/number", longest, "go/none"})
	check(err == nil && len(found) == 4, "get many")
	check(bytes.Equal(found["go/large"].Value, large) && found["go/large"].Flags == 7, "large")
	check(len(found["go/empty"].Value) == 0, "empty")
	check(bytes.Equal(found[longest].Value, []byte("\r\nEND\r\n")), "longest")
	check(bytes.Equal(found["go/number"].Value, []byte("first")), "number")
}

func main() {
	client := memcache.New(os.Args[2])
	client.Timeout = 10 * time.Second
	if os.Args[1] == "write" {
		write(client)
	} else {
		read(client)
	}
	fmt.Println("done")
}
