/* SPDX-License-Identifier: Apache-2.0 */

/* policy_ttft: the worker with the least predicted time to first token. */
#ifndef ROUTER_POLICY_POLICY_TTFT_H
#define ROUTER_POLICY_POLICY_TTFT_H

#include "router/policy/policy.h"

extern const struct policy policy_ttft;

#endif
