#include "unit.h"
UNIT_MAIN()
