/* SPDX-License-Identifier: Apache-2.0 */

#include "hashing/checksum.h"

#include "hashing/checksum_wide.h"
#include "hashing/xxh3.h"

/*
 * DESIGN
 * Beside a copy of pages a checksum costs what the copy leaves of the processor: with the 128-bit
 * registers that every x86-64 has it reads 6 GB/s, no faster than memory is copied; with 256 bits
 * 12. So the wide form is a file of its own, compiled for processors that have it
 * (checksum_avx2.c; checksum_narrow.c elsewhere), and asked for at each call: a few nanoseconds
 * against tens of microseconds. Both give the same number.
 */

uint64_t checksum(const void *bytes, size_t len)
{
    const void *start = len > 0 ? bytes : "";

    return checksum_wide_is_there() ? checksum_wide(start, len) : XXH3_64bits(start, len);
}
