/*
 * cmocka with the headers that it wants to see first.
 */
#ifndef TEST_LIB_CM_H
#define TEST_LIB_CM_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#endif
