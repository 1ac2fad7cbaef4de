package sluice

import "fmt"

// The text forms of enumerations: names has them, by value.

func enumString[T ~uint8](kind string, names []string, v T) string {
	if int(v) < len(names) {
		return names[v]
	}
	return fmt.Sprintf("%s(%d)", kind, uint8(v))
}

func enumMarshal[T ~uint8](kind string, names []string, v T) ([]byte, error) {
	if int(v) < len(names) {
		return []byte(names[v]), nil
	}
	return nil, fmt.Errorf("sluice: %s %d has no text form", kind, uint8(v))
}

func enumUnmarshal[T ~uint8](kind string, names []string, v *T, text []byte) error {
	for i, name := range names {
		if name == string(text) {
			*v = T(i)
			return nil
		}
	}
	return fmt.Errorf("sluice: unknown %s %q; want one of %v", kind, text, names)
}
