/* SPDX-License-Identifier: Apache-2.0 */

/* policy_least_load: the worker with the fewest requests, whatever it holds. */
#ifndef ROUTER_POLICY_POLICY_LEAST_LOAD_H
#define ROUTER_POLICY_POLICY_LEAST_LOAD_H

#include "router/policy/policy.h"

extern const struct policy policy_least_load;

#endif
