#pragma once

#include "arrays.h"

void bind_answers(nb::module_& module);
