/* CRC-32C (Castagnoli), by the processor's instructions where it has them; CRC-32. */
#ifndef VC_CRC32C_H
#define VC_CRC32C_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Return the CRC-32C of the bytes with this `crc` followed by `length` more; 0 is that of no
 * bytes. Thread-safe. The implementation is chosen when the library is loaded. */
uint32_t vc_crc32c(uint32_t crc, const void *data, size_t length);

/* Whether two inputs of `length` bytes whose CRC-32C differ so may differ in a single bit. False
 * above 1 MiB: each bit is tried. */
bool vc_crc32c_is_one_bit(uint32_t difference, size_t length);

/* `vc_crc32c` without folding, for tests, short inputs and processors that cannot fold. */
uint32_t vc_crc32c_instruction(uint32_t crc, const void *data, size_t length);

/* The same in tables, for tests and for processors without the instruction. */
uint32_t vc_crc32c_tables(uint32_t crc, const void *data, size_t length);

/* The CRC-32 of zlib and nginx, likewise; for short inputs such as keys. */
uint32_t vc_crc32(uint32_t crc, const void *data, size_t length);

#endif
