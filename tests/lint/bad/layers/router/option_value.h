/* SPDX-License-Identifier: Apache-2.0 */
/* Private to option: no cycle. */
#include "router/option.h"
