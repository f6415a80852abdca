/* SPDX-License-Identifier: Apache-2.0 */

/* policy_round_robin: one worker after the other, whatever they hold or do. */
#ifndef ROUTER_POLICY_POLICY_ROUND_ROBIN_H
#define ROUTER_POLICY_POLICY_ROUND_ROBIN_H

#include "router/policy/policy.h"

extern const struct policy policy_round_robin;

#endif
