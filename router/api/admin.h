/* SPDX-License-Identifier: Apache-2.0 */

/* admin: the endpoints of the operator's listener: /metrics and /workers. */
#ifndef ROUTER_API_ADMIN_H
#define ROUTER_API_ADMIN_H

#include "router/endpoint.h"

extern const struct endpoint_table admin_endpoints;

#endif
