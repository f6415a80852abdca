/* SPDX-License-Identifier: Apache-2.0 */
#include "router/policy/policy.h"
