/* SPDX-License-Identifier: Apache-2.0 */

/*
 * loop_fixture: one event loop per test, and the proof at its end that nothing is left in it:
 * TestSuite(module, .init = loop_fixture_init, .fini = loop_fixture_fini).
 */
#ifndef TESTS_SUPPORT_LOOP_FIXTURE_H
#define TESTS_SUPPORT_LOOP_FIXTURE_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "backends/io_loop.h"

void loop_fixture_init(void);

/* Lets what is closing close, then aborts if a handle is left or memory has leaked. */
void loop_fixture_fini(void);

/* The loop of the running test, and what it is a part of. */
uv_loop_t *loop_fixture_loop(void);
struct io_loop *loop_fixture_io(void);

/* Runs the loop until is_true(ctx), at most timeout_ms; says whether it became true. */
bool loop_run_until(bool (*is_true)(void *ctx), void *ctx, uint64_t timeout_ms);

/* The usual case: until *flag. */
bool loop_run_until_flag(const bool *flag, uint64_t timeout_ms);

/* Runs the loop for duration_ms: only to show that something does NOT happen. */
void loop_run_for(uint64_t duration_ms);

#endif
