/* SPDX-License-Identifier: Apache-2.0 */
#include "router/option.h"
#include "router/option_value.h"
