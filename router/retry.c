/* SPDX-License-Identifier: Apache-2.0 */

#include "router/retry.h"

#include <assert.h>

/*
 * DESIGN
 *
 * A reused connection that dies without a byte was most likely closed by its worker while it lay
 * idle; but that is not certain (the request may have killed the engine), so it counts as a death
 * like any other, and the same worker is asked again only where there is no other one.
 *
 * An engine that dies of a request shows it in several ways: the connection dies, before or behind
 * the head of a stream; it answers 500 with its last breath; or whatever was put in front of it
 * says 502 or 504. None can be told from an accident, so all of them end the client's own retries
 * too. A 503 is a refusal: nothing was begun; and so is a 501, of an engine that does not have the
 * endpoint.
 *
 * A request that belongs to one worker (it asks for a response that is stored there, or goes on
 * from one) needs no rule of its own: there is no other worker that may serve it.
 */
#define BUDGET_TOKENS_PER_REQUEST 0.1

static enum retry_verdict elsewhere(const struct retry_history *history)
{
    return history->has_other_worker ? RETRY_ELSEWHERE : RETRY_NO;
}

enum retry_verdict retry_decide(enum attempt_failure failure, const struct retry_history *history)
{
    assert(failure < ATTEMPT_FAILURE_COUNT);

    if (history->has_answered || history->retry_count >= history->retry_count_max ||
        history->death_count >= 2)
        return RETRY_NO;

    /* What we had added ourselves is taken back at our own cost: a client that sends nothing but
     * bad requests must not use up the retries of the others. */
    if (failure != ATTEMPT_USAGE_REFUSED && !history->has_budget)
        return RETRY_NO;

    switch (failure) {
    case ATTEMPT_CONNECT_FAILED:
    case ATTEMPT_DIED:
    case ATTEMPT_BUSY:
        return elsewhere(history);
    case ATTEMPT_STALE:
        return history->has_other_worker ? RETRY_ELSEWHERE : RETRY_SAME_FRESH;
    case ATTEMPT_USAGE_REFUSED:
        return RETRY_SAME_PLAIN;
    case ATTEMPT_HALF_ANSWERED:
    case ATTEMPT_TIMEOUT:
    case ATTEMPT_PROTOCOL:
        return history->is_repeatable ? elsewhere(history) : RETRY_NO;
    case ATTEMPT_FAILURE_COUNT:
        break;
    }
    return RETRY_NO;
}

bool retry_failure_was_begun(enum attempt_failure failure)
{
    assert(failure < ATTEMPT_FAILURE_COUNT);

    return failure != ATTEMPT_CONNECT_FAILED && failure != ATTEMPT_BUSY &&
           failure != ATTEMPT_USAGE_REFUSED;
}

bool retry_status_is_busy(int status)
{
    return status == 429 || status == 503 || status == 529;
}

bool retry_status_was_begun(int status)
{
    return status >= 500 && status != 501 && !retry_status_is_busy(status);
}

void retry_budget_init(struct retry_budget *budget)
{
    budget->tokens = RETRY_BUDGET_TOKENS_MAX;
}

void retry_budget_earn(struct retry_budget *budget)
{
    budget->tokens += BUDGET_TOKENS_PER_REQUEST;
    if (budget->tokens > RETRY_BUDGET_TOKENS_MAX)
        budget->tokens = RETRY_BUDGET_TOKENS_MAX;
}

bool retry_budget_has(const struct retry_budget *budget)
{
    return budget->tokens >= 1;
}

void retry_budget_spend(struct retry_budget *budget)
{
    assert(budget->tokens >= 1);

    budget->tokens -= 1;
}
