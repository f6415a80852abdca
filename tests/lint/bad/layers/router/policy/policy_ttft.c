/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/worker.h"
#include "backends/runtime/slice.h"
