package counter

import (
	"bytes"
	"os"
)

// Unfit says why no clock can be made of the counter, in half a sentence; "" if one can.
// Linux watches the counter at work, and uses another clock source if it is not steady after
// all. Where Linux does not say, and on other systems, the processor decides.
func Unfit() string {
	if why := unsteady(); why != "" {
		return why
	}
	return unused("/sys/devices/system/clocksource/clocksource0/current_clocksource")
}

// unused says that the clock source in the file is not the counter, if so.
func unused(path string) string {
	data, err := os.ReadFile(path)
	if source := string(bytes.TrimSpace(data)); err == nil && source != "" && source != clocksource {
		return "the kernel's clock source is " + source + " and not " + clocksource
	}
	return ""
}
