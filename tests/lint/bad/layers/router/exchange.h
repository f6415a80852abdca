/* SPDX-License-Identifier: Apache-2.0 */
#include "kvtier/mover.h"
#include "tests/support/fake_clock.h"
#include <simdjson.h>
