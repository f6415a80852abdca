/* SPDX-License-Identifier: Apache-2.0 */

/*
 * checksum: whether a long run of bytes is still what it was. Plain XXH3-64, as wide as the
 * processor has it: with 256-bit registers it reads twice as fast as memory gives. It finds
 * accidents, not forgers: it has no key, and is no name. Equal on every host. Pure; any thread.
 */
#ifndef HASHING_CHECKSUM_H
#define HASHING_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

/* bytes may be NULL when len is 0. */
uint64_t checksum(const void *bytes, size_t len);

#endif
