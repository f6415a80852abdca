/* SPDX-License-Identifier: Apache-2.0 */

/* policy_random: any worker, whatever it holds or does. */
#ifndef ROUTER_POLICY_POLICY_RANDOM_H
#define ROUTER_POLICY_POLICY_RANDOM_H

#include "router/policy/policy.h"

extern const struct policy policy_random;

#endif
