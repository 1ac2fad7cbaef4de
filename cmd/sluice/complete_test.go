package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/sluice-go/sluice/cmd/internal/cli"
)

// TestCompletion: shells are told what flags take, and scripts for them can be had.
func TestCompletion(t *testing.T) {
	for line, want := range map[string]string{ // the shell picks what fits
		"replay --algorithm ":           "all\ngcra\ntoken-bucket\nleaky-bucket\nsliding-window\nsliding-log\nfixed-window\n:4\n",
		"recommend --algorithm ":        "gcra\ntoken-bucket\nleaky-bucket\nsliding-window\nsliding-log\nfixed-window\n:4\n",
		"compare --output ":             "text\njson\n:4\n",
		"replay --key ":                 "client\npath-class\npath\nmethod\nhost\nuser\nagent\nstatus\nstatus-class\nfield:\n:6\n",
		"recommend --key client,status": "client,path-class\nclient,path\nclient,method\nclient,host\nclient,user\nclient,agent\nclient,status\nclient,status-class\nclient,field:\n:6\n",
		"rec":                           "recommend\tRecommend limits for the clients of an access log\n:4\n",
	} {
		code, stdout, _ := execute(nil, append([]string{"__complete"}, strings.Split(line, " ")...)...)
		assert.Equal(t, cli.ExitOK, code)
		assert.Equal(t, want, stdout, line)
	}
	_, stdout, _ := execute(nil, "__complete", "recommend", "--output", "")
	assert.Contains(t, stdout, "json\nserve\tthe rule for sluiced serve\nnginx\tthe rule for nginx\n")
	_, stdout, _ = execute(nil, "__complete", "compare", "--pattern", "")
	assert.Contains(t, stdout, "bursty\ttwice the limit at once, every two periods\n")
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		code, stdout, _ := execute(nil, "completion", shell)
		assert.Equal(t, cli.ExitOK, code)
		assert.Contains(t, stdout, "sluice")
	}
}
