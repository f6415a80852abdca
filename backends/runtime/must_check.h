/* SPDX-License-Identifier: Apache-2.0 */

/* must_check: what every file may use without thinking: MUST_CHECK, array_count, container_of. */
#ifndef BACKENDS_RUNTIME_MUST_CHECK_H
#define BACKENDS_RUNTIME_MUST_CHECK_H

#include <stddef.h>

#define MUST_CHECK __attribute__((warn_unused_result))

#define array_count(array) (sizeof(array) / sizeof((array)[0]))

/* The struct that embeds *member_ptr as its member. */
#define container_of(member_ptr, type, member)                                                     \
    ((type *)(void *)((char *)(member_ptr)-offsetof(type, member)))

#endif
