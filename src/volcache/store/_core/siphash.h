/* SipHash-1-3: a keyed hash, so that a client that does not know the key cannot choose keys
 * that collide. Source: Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012. */
#ifndef VC_SIPHASH_H
#define VC_SIPHASH_H

#include <stddef.h>
#include <stdint.h>

uint64_t vc_siphash13(const uint8_t key[16], const uint8_t *data, size_t length);

#endif
