/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/support/loop_fixture.h"

#include "tests/support/leak_check.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

/*
 * DESIGN
 *
 * Criterion runs each test in a process of its own, so one static loop serves them all. A failed
 * assertion in .fini does not fail the run, an abort does.
 */

enum { FINI_TIMEOUT_MS = 5000 };

static struct io_loop io;

void loop_fixture_init(void)
{
    signal(SIGPIPE, SIG_IGN); /* as our programs do: libuv writes to sockets whose peer has left */
    if (io_loop_init(&io) != 0)
        abort();
}

static bool is_empty(void *ctx)
{
    (void)ctx;
    return uv_loop_alive(&io.loop) == 0;
}

void loop_fixture_fini(void)
{
    io_loop_stop_tick(&io);
    loop_run_until(is_empty, NULL, FINI_TIMEOUT_MS);
    uv_run(&io.loop, UV_RUN_NOWAIT); /* the wake-up timer of the wait itself */
    if (uv_loop_close(&io.loop) != 0) {
        fprintf(stderr, "handles left in the loop:\n");
        uv_print_all_handles(&io.loop, stderr);
        abort();
    }
    leak_check();
}

uv_loop_t *loop_fixture_loop(void)
{
    return &io.loop;
}

struct io_loop *loop_fixture_io(void)
{
    return &io;
}

/* Wakes the loop up, so that a wait with nothing else to do ends at its deadline. */
static void on_wake_up(uv_timer_t *timer)
{
    (void)timer;
}

bool loop_run_until(bool (*is_true)(void *ctx), void *ctx, uint64_t timeout_ms)
{
    uint64_t end_ns = uv_hrtime() + timeout_ms * 1000000;
    uv_timer_t wake_up;
    bool was_true;

    uv_timer_init(&io.loop, &wake_up);
    uv_update_time(&io.loop);
    uv_timer_start(&wake_up, on_wake_up, timeout_ms, 10);
    uv_unref((uv_handle_t *)&wake_up); /* is_empty() must not wait for it */
    while (!(was_true = is_true(ctx)) && uv_hrtime() < end_ns) {
        uv_ref((uv_handle_t *)&wake_up); /* but poll must */
        uv_run(&io.loop, UV_RUN_ONCE);
        uv_unref((uv_handle_t *)&wake_up);
    }
    uv_close((uv_handle_t *)&wake_up, NULL);
    uv_run(&io.loop, UV_RUN_NOWAIT); /* it is on the stack: closed before we return */
    return was_true;
}

static bool flag_is_set(void *ctx)
{
    const bool *const *flag = ctx;

    return **flag;
}

bool loop_run_until_flag(const bool *flag, uint64_t timeout_ms)
{
    return loop_run_until(flag_is_set, &flag, timeout_ms);
}

static bool never(void *ctx)
{
    (void)ctx;
    return false;
}

void loop_run_for(uint64_t duration_ms)
{
    loop_run_until(never, NULL, duration_ms);
}
