/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/worker.h"
#include "digest.h"
#include <uv.h>
