/* SPDX-License-Identifier: Apache-2.0 */
#include <llhttp.h>
#include <uv.h>
