/* SPDX-License-Identifier: Apache-2.0 */
#include "router/exchange.h"
#include "backends/worker_set.h"
#include <xxhash.h>
