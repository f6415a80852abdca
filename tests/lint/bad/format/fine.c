/* SPDX-License-Identifier: Apache-2.0 */
int fine(int a)
{
    return a;
}
