// Times as programs write them: 2026-01-31T00:00:00Z, with milliseconds or microseconds, or +hh:mm.
#pragma once

#include <cstdint>
#include <string_view>

namespace iso_time_detail {

inline bool digits(std::string_view text, size_t first, size_t count, int64_t& value) {
    value = 0;
    for (size_t i = first; i < first + count; ++i) {
        if (text[i] < '0' || text[i] > '9') return false;
        value = value * 10 + (text[i] - '0');
    }
    return true;
}

// Days since 1970 in the Gregorian calendar; years begin in March, so that a leap day is the last.
inline int64_t days_of(int64_t year, int64_t month, int64_t day) {
    year -= month <= 2;
    const int64_t era = year / 400, of_era = year - era * 400;
    const int64_t of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
    return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
}

inline int64_t days_in(int64_t year, int64_t month) {
    if (month == 2) return year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) ? 29 : 28;
    return month == 4 || month == 6 || month == 9 || month == 11 ? 30 : 31;
}

}  // namespace iso_time_detail

// Microseconds since 1970 UTC; false for other spellings, and years outside 1900 to 2199.
inline bool iso_time(std::string_view text, int64_t& microseconds) {
    using namespace iso_time_detail;
    if (text.size() < 20 || text[4] != '-' || text[7] != '-' || (text[10] != 'T' && text[10] != ' ') ||
        text[13] != ':' || text[16] != ':')
        return false;
    int64_t year, month, day, hour, minute, second, fraction = 0;
    if (!digits(text, 0, 4, year) || !digits(text, 5, 2, month) || !digits(text, 8, 2, day) ||
        !digits(text, 11, 2, hour) || !digits(text, 14, 2, minute) || !digits(text, 17, 2, second))
        return false;
    if (year < 1900 || year > 2199 || month < 1 || month > 12 || day < 1 || day > days_in(year, month) ||
        hour > 23 || minute > 59 || second > 59)
        return false;
    std::string_view zone = text.substr(19);
    if (zone[0] == '.') {
        const size_t end = zone.find_first_not_of("0123456789", 1);
        if (end != 4 && end != 7) return false;
        digits(zone, 1, end - 1, fraction);
        if (end == 4) fraction *= 1000;
        zone.remove_prefix(end);
    }
    int64_t offset_minutes = 0;
    if (zone != "Z") {
        int64_t hours, minutes;
        if (zone.size() != 6 || (zone[0] != '+' && zone[0] != '-') || zone[3] != ':' ||
            !digits(zone, 1, 2, hours) || !digits(zone, 4, 2, minutes) || hours > 23 || minutes > 59)
            return false;
        offset_minutes = (hours * 60 + minutes) * (zone[0] == '-' ? -1 : 1);
    }
    const int64_t minutes = (days_of(year, month, day) * 24 + hour) * 60 + minute - offset_minutes;
    microseconds = (minutes * 60 + second) * 1'000'000 + fraction;
    return true;
}
