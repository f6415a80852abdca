/* SPDX-License-Identifier: Apache-2.0 */
#include <simdjson.h>
