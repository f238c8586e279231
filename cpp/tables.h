#pragma once

#include "arrays.h"

void bind_tables(nb::module_& module);
