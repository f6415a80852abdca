/* SPDX-License-Identifier: Apache-2.0 */

#include "router/retry.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <assert.h>
#include <signal.h>

#include "backends/runtime/must_check.h"
#include "tests/support/leak_check.h"

/* What each failure comes to when nothing else speaks against another attempt. */
static const struct {
    enum retry_verdict with_other_worker;
    enum retry_verdict alone;
    enum retry_verdict repeatable; /* with another worker */
} verdicts[] = {
    [ATTEMPT_CONNECT_FAILED] = {RETRY_ELSEWHERE, RETRY_NO, RETRY_ELSEWHERE},
    [ATTEMPT_STALE] = {RETRY_ELSEWHERE, RETRY_SAME_FRESH, RETRY_ELSEWHERE},
    [ATTEMPT_DIED] = {RETRY_ELSEWHERE, RETRY_NO, RETRY_ELSEWHERE},
    [ATTEMPT_HALF_ANSWERED] = {RETRY_NO, RETRY_NO, RETRY_ELSEWHERE},
    [ATTEMPT_BUSY] = {RETRY_ELSEWHERE, RETRY_NO, RETRY_ELSEWHERE},
    [ATTEMPT_USAGE_REFUSED] = {RETRY_SAME_PLAIN, RETRY_SAME_PLAIN, RETRY_SAME_PLAIN},
    [ATTEMPT_TIMEOUT] = {RETRY_NO, RETRY_NO, RETRY_ELSEWHERE},
    [ATTEMPT_PROTOCOL] = {RETRY_NO, RETRY_NO, RETRY_ELSEWHERE},
};
static_assert(array_count(verdicts) == ATTEMPT_FAILURE_COUNT, "every failure is in the table");

static enum retry_verdict verdict_on(int failure, const struct retry_history *history)
{
    return !history->has_other_worker ? verdicts[failure].alone
           : history->is_repeatable   ? verdicts[failure].repeatable
                                      : verdicts[failure].with_other_worker;
}

/* One retry is allowed and nothing was lost but what the failure itself says. */
static struct retry_history free_history(void)
{
    return (struct retry_history){
        .retry_count = 0, .retry_count_max = 3, .has_other_worker = true, .has_budget = true};
}

TestSuite(retry, .fini = leak_check);

Test(retry, every_failure_has_its_verdict)
{
    for (int failure = 0; failure < ATTEMPT_FAILURE_COUNT; failure++) {
        for (unsigned bits = 0; bits < 4; bits++) {
            struct retry_history history = free_history();
            history.has_other_worker = (bits & 1) != 0;
            history.is_repeatable = (bits & 2) != 0;

            cr_assert(eq(int, retry_decide((enum attempt_failure)failure, &history),
                         verdict_on(failure, &history)),
                      "failure %d, history %u", failure, bits);
        }
    }
}

Test(retry, whatever_failed_nothing_is_retried_once_history_forbids_it)
{
    for (int failure = 0; failure < ATTEMPT_FAILURE_COUNT; failure++) {
        for (unsigned bits = 0; bits < 64; bits++) {
            struct retry_history history = {
                .retry_count = bits & 1 ? 3 : 2,
                .retry_count_max = 3,
                .death_count = bits & 2 ? 2 : 1,
                .has_answered = (bits & 4) != 0,
                .has_other_worker = (bits & 8) != 0,
                .has_budget = (bits & 16) == 0,
                .is_repeatable = (bits & 32) != 0,
            };
            /* what we had added ourselves is taken back at our own cost */
            unsigned budget_bit = failure == ATTEMPT_USAGE_REFUSED ? 0 : 16;
            bool is_forbidden = (bits & (1 | 2 | 4 | budget_bit)) != 0;

            cr_assert(eq(int, retry_decide((enum attempt_failure)failure, &history),
                         is_forbidden ? RETRY_NO : verdict_on(failure, &history)),
                      "failure %d, history %u", failure, bits);
        }
    }
}

Test(retry, a_maximum_of_none_is_none)
{
    struct retry_history history = free_history();
    history.retry_count_max = 0;

    cr_assert(eq(int, retry_decide(ATTEMPT_CONNECT_FAILED, &history), RETRY_NO));
}

Test(retry, a_query_of_death_meets_two_workers_and_no_third)
{
    struct retry_history history = free_history();
    uint32_t attempt_count = 1;

    for (;;) {
        history.death_count++;
        if (retry_decide(ATTEMPT_DIED, &history) == RETRY_NO)
            break;
        history.retry_count++;
        attempt_count++;
    }

    cr_assert(eq(u32, attempt_count, 2));
}

Test(retry, a_repeatable_request_is_lost_twice_at_most_however_it_is_lost)
{
    for (int first = 0; first < ATTEMPT_FAILURE_COUNT; first++) {
        for (int second = 0; second < ATTEMPT_FAILURE_COUNT; second++) {
            struct retry_history history = free_history();
            bool is_lost_twice = retry_failure_was_begun((enum attempt_failure)first) &&
                                 retry_failure_was_begun((enum attempt_failure)second);
            history.is_repeatable = true;
            history.death_count = (uint32_t)retry_failure_was_begun((enum attempt_failure)first) +
                                  retry_failure_was_begun((enum attempt_failure)second);

            cr_assert(eq(int, retry_decide((enum attempt_failure)second, &history) == RETRY_NO,
                         is_lost_twice),
                      "%d, then %d", first, second);
        }
    }
}

Test(retry, only_refusals_leave_no_engine_at_work)
{
    static const bool was_begun[ATTEMPT_FAILURE_COUNT] = {
        [ATTEMPT_STALE] = true,   [ATTEMPT_DIED] = true,     [ATTEMPT_HALF_ANSWERED] = true,
        [ATTEMPT_TIMEOUT] = true, [ATTEMPT_PROTOCOL] = true,
    };

    for (int failure = 0; failure < ATTEMPT_FAILURE_COUNT; failure++) {
        cr_assert(
            eq(int, retry_failure_was_begun((enum attempt_failure)failure), was_begun[failure]),
            "%d", failure);
    }
    for (int status = 100; status < 600; status++)
        cr_assert(eq(int, retry_status_was_begun(status),
                     status >= 500 && status != 501 && status != 503 && status != 529));
}

Test(retry, only_three_statuses_say_that_there_is_too_much_to_do)
{
    for (int status = 100; status < 600; status++)
        cr_assert(
            eq(int, retry_status_is_busy(status), status == 429 || status == 503 || status == 529));
}

Test(retry, a_full_budget_pays_for_its_size_and_no_more)
{
    struct retry_budget budget;
    uint32_t spent = 0;
    retry_budget_init(&budget);

    for (; retry_budget_has(&budget); spent++)
        retry_budget_spend(&budget);

    cr_assert(eq(u32, spent, RETRY_BUDGET_TOKENS_MAX));
}

Test(retry, ten_requests_earn_one_retry)
{
    struct retry_budget budget;
    retry_budget_init(&budget);
    while (retry_budget_has(&budget))
        retry_budget_spend(&budget);

    for (int i = 0; i < 9; i++) {
        retry_budget_earn(&budget);
        cr_assert(not(retry_budget_has(&budget)), "%d", i);
    }
    retry_budget_earn(&budget);
    retry_budget_earn(&budget); /* 0.1 has no exact double: the eleventh is certain */

    cr_assert(retry_budget_has(&budget));
}

Test(retry, a_budget_saves_no_more_than_its_size)
{
    struct retry_budget budget;
    uint32_t spent = 0;
    retry_budget_init(&budget);

    for (int i = 0; i < 100000; i++)
        retry_budget_earn(&budget);
    for (; retry_budget_has(&budget); spent++)
        retry_budget_spend(&budget);

    cr_assert(eq(u32, spent, RETRY_BUDGET_TOKENS_MAX));
}

Test(retry, spending_what_is_not_there_is_a_bug, .signal = SIGABRT)
{
    struct retry_budget budget = {0};

    retry_budget_spend(&budget);
}
