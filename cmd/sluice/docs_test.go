package main

import "testing"

func TestDocs_FlagsAndFiles(t *testing.T) { theProgram.Pages(t, nil, "README.md") }
