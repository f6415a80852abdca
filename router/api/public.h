/* SPDX-License-Identifier: Apache-2.0 */

/* public: the endpoints that clients see. */
#ifndef ROUTER_API_PUBLIC_H
#define ROUTER_API_PUBLIC_H

#include "router/endpoint.h"

extern const struct endpoint_table public_endpoints;

#endif
