/*
 * A folder that the table does not know.
 */
#include "base/good.h"

int  fb_badly_formatted( void );
