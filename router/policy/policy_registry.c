/* SPDX-License-Identifier: Apache-2.0 */

#include "router/policy/policy.h"

#include "backends/runtime/must_check.h"
#include "router/policy/policy_least_load.h"
#include "router/policy/policy_random.h"
#include "router/policy/policy_round_robin.h"
#include "router/policy/policy_ttft.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* A new policy is one file and one line here. */
static const struct policy *const policies[] = {
    &policy_ttft, &policy_least_load, &policy_round_robin, &policy_random, NULL,
};

static const char *const rung_names[] = {
#define RUNG_NAME(constant, name) [constant] = name,
    ROUTE_RUNG_ROWS(RUNG_NAME)
#undef RUNG_NAME
};

struct policy_state *policy_state_create(const struct policy *policy, uint64_t seed)
{
    struct policy_state *state = calloc(1, policy->state_bytes);

    if (state != NULL)
        memcpy(state, &seed, sizeof seed); /* its generator comes first */
    return state;
}

void policy_state_destroy(struct policy_state *state)
{
    free(state);
}

const struct policy *policy_find(const char *name)
{
    for (const struct policy *const *policy = policies; *policy != NULL; policy++)
        if (strcmp((*policy)->name, name) == 0)
            return *policy;
    return NULL;
}

const struct policy *const *policy_list(void)
{
    return policies;
}

void policy_names(const char *names[POLICY_NAME_COUNT_MAX])
{
    size_t count = 0;

    static_assert(array_count(policies) <= POLICY_NAME_COUNT_MAX, "all of them, and a NULL");
    for (; policies[count] != NULL; count++)
        names[count] = policies[count]->name;
    names[count] = NULL;
}

const char *route_rung_name(enum route_rung rung)
{
    assert(rung < ROUTE_RUNG_COUNT);

    return rung_names[rung];
}
