/* SPDX-License-Identifier: Apache-2.0 */

/*
 * leak_check: a fini for every TestSuite. Criterion prints a leak that the address sanitizer finds
 * but lets the test pass; an abort in fini makes the run fail.
 */
#ifndef TESTS_SUPPORT_LEAK_CHECK_H
#define TESTS_SUPPORT_LEAK_CHECK_H

#if defined(__SANITIZE_ADDRESS__)
#define LEAK_CHECK_IS_ON 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define LEAK_CHECK_IS_ON 1
#endif
#endif

#ifdef LEAK_CHECK_IS_ON
#include <sanitizer/lsan_interface.h>
#include <stdlib.h>

static inline void leak_check(void)
{
    if (__lsan_do_recoverable_leak_check() != 0)
        abort();
}
#else
static inline void leak_check(void)
{
}
#endif

#endif
