/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HASHING_BOTH_H
#define HASHING_BOTH_H

#ifdef __cplusplus
extern "C" {
#endif

static inline int *both(void *memory)
{
    return memory;
}

#ifdef __cplusplus
}
#endif

#endif
