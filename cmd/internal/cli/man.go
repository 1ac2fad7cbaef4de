package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// newMan makes the command that writes manual pages, for packages of this program. Cobra's own generator reads help as Markdown, which would
// fill the tables of this help like paragraphs.
func newMan(program string) *cobra.Command {
	return &cobra.Command{
		Use:     "man DIR",
		Short:   "Write manual pages into a directory",
		Long:    "Man writes a page for each command, in section 1. They have the date of\nSOURCE_DATE_EPOCH, or none, so that the same program writes the same pages.",
		Example: "  " + program + " man /usr/local/share/man/man1",
		Hidden:  true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return errors.New("want one directory")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			date, err := manDate(os.Getenv("SOURCE_DATE_EPOCH"))
			if err != nil {
				return err
			}
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return Fail(err)
			}
			for _, c := range append(cmd.Root().Commands(), cmd.Root()) {
				if c != c.Root() && !c.IsAvailableCommand() {
					continue
				}
				if err := os.WriteFile(filepath.Join(args[0], manName(c)+".1"), []byte(manPage(c, date)), 0o644); err != nil {
					return Fail(err)
				}
			}
			return nil
		},
	}
}

// manDate is the date of pages.
func manDate(epoch string) (string, error) {
	if epoch == "" {
		return "", nil
	}
	seconds, err := strconv.ParseInt(epoch, 10, 36)
	if err != nil || seconds < 0 {
		return "", fmt.Errorf("SOURCE_DATE_EPOCH %q: want Unix seconds", epoch)
	}
	return time.Unix(seconds, 0).UTC().Format(time.DateOnly), nil
}

func manName(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

// manPage is the page of a command.
func manPage(c *cobra.Command, date string) string {
	var b strings.Builder
	name := manName(c)
	fmt.Fprintf(&b, ".TH %s 1 \"%s\" \"sluice\" \"Sluice Manual\"\n.SH NAME\n%s \\- %s\n", roff(strings.ToUpper(name)), date, roff(name), roff(c.Short))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n.SH DESCRIPTION\n", roff(c.UseLine()))
	manText(&b, c.Long)
	for i, g := range groupsOf(c.Flags(), 76) {
		if i == 0 {
			b.WriteString(".SH OPTIONS\n")
		}
		if g.title != "Flags" {
			fmt.Fprintf(&b, ".SS %s\n", roff(g.title))
		}
		manLines(&b, strings.TrimRight(g.help, "\n"))
	}
	if c.Example != "" {
		b.WriteString(".SH EXAMPLES\n")
		manLines(&b, c.Example)
	}
	b.WriteString(".SH SEE ALSO\n")
	var others []string
	for _, o := range append(c.Root().Commands(), c.Root()) {
		if o != c && (o.IsAvailableCommand() || o == c.Root()) {
			others = append(others, ".BR "+roff(manName(o))+" (1)")
		}
	}
	b.WriteString(strings.Join(others, " ,\n") + "\n")
	return b.String()
}

// manText writes paragraphs, and lines that begin with blanks as they are.
func manText(b *strings.Builder, text string) {
	for paragraph := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		if strings.HasPrefix(paragraph, " ") {
			b.WriteString(".PP\n")
			manLines(b, paragraph)
			continue
		}
		fmt.Fprintf(b, ".PP\n%s\n", roff(paragraph))
	}
}

// manLines writes lines that keep their ends and their blanks.
func manLines(b *strings.Builder, lines string) { fmt.Fprintf(b, ".EX\n%s\n.EE\n", roff(lines)) }

// roff is text that has no commands in it. A line that begins with a dot or a quote would be one.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`).Replace(text)
	return strings.TrimPrefix(strings.ReplaceAll("\n"+text, "\n.", "\n\\&."), "\n")
}
