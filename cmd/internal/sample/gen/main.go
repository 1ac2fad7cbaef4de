// Command gen writes the sample log, compressed, to the file it is given.
package main

import (
	"compress/gzip"
	"errors"
	"fmt"
	"os"

	"github.com/sluice-go/sluice/cmd/internal/sample"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return errors.New("want the name of the file to write")
	}
	file, err := os.Create(args[0])
	if err != nil {
		return err
	}
	zipped, err := gzip.NewWriterLevel(file, gzip.BestCompression)
	if err != nil {
		return err
	}
	return errors.Join(sample.Generate(zipped), zipped.Close(), file.Close())
}
