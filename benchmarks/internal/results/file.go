package results

import (
	"encoding/json"
	"fmt"
	"os"
)

// File is the name under which a folder of results keeps them for programs.
const File = "results.json"

// Load reads into r, a pointer, a file of Save. The error names the file.
func Load(path string, r any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, r); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// Save writes results in full, samples and all, without spaces: there are tens of thousands of them.
func Save(path string, r any) error {
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}
