/* SPDX-License-Identifier: Apache-2.0 */
/* #include "router/exchange.h": in a comment it is no include. */
#include "backends/worker.h"
