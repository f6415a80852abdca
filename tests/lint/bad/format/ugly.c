/* SPDX-License-Identifier: Apache-2.0 */
int  ugly( int a ){return a;}
