package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice/cmd/internal/cli"
)

// htmlFlag is the flag of commands that write a page beside their report.
type htmlFlag struct{ path string }

func (h *htmlFlag) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&h.path, "html", "", "write a page with charts to `FILE`, too")
}

// write writes the page, if there is to be one.
func (h *htmlFlag) write(cmd *cobra.Command, page func(w io.Writer, command string) error) error {
	if h.path == "" {
		return nil
	}
	file, err := os.Create(h.path)
	if err != nil {
		return cli.Fail(fmt.Errorf("--html: %w", err))
	}
	w := bufio.NewWriter(file)
	err = page(w, cmd.Root().Annotations[asTyped])
	if err = errors.Join(err, w.Flush(), file.Close()); err != nil {
		return cli.Fail(fmt.Errorf("--html: %w", err))
	}
	return nil
}

// asTyped is the annotation of the root that has the command line.
const asTyped = "command line"

var plainWord = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// shellLine writes a command line as a shell reads it.
func shellLine(args []string) string {
	words := []string{"sluice"}
	for _, arg := range args {
		if !plainWord.MatchString(arg) {
			arg = "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
		}
		words = append(words, arg)
	}
	return strings.Join(words, " ")
}
