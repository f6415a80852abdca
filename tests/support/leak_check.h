/* SPDX-License-Identifier: Apache-2.0 */

/*
 * leak_check: makes a leak fail a Criterion suite: TestSuite(module, .fini = leak_check).
 * LeakSanitizer alone only prints, and the run still passes. Without ASan it does nothing.
 */
#ifndef TESTS_SUPPORT_LEAK_CHECK_H
#define TESTS_SUPPORT_LEAK_CHECK_H

#include <stdlib.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define LEAK_CHECK_IS_ON 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define LEAK_CHECK_IS_ON 1
#endif

#ifdef LEAK_CHECK_IS_ON
#include <sanitizer/lsan_interface.h>

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
