/* SPDX-License-Identifier: Apache-2.0 */
#include "router/exchange.h"
#include <criterion/criterion.h>
#include <llhttp.h>
