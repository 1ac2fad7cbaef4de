package messagelimit_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/messagelimit"
)

// Each connection may send two messages a second, and each user three over all of his connections. A message above that ends its connection; with
// MaxWait it would wait.
func Example() {
	clock := sluice.NewManualClock(time.Unix(0, 0))
	perConnection := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerSecond(2), Clock: clock}))
	perUser := sluice.Must(sluice.New(sluice.Config{Limit: sluice.PerSecond(3), Clock: clock}))

	limit := sluice.Must(messagelimit.New(messagelimit.Config{
		Keys: []sluice.Key{perConnection.Key("connection 1"), perUser.Key("ann")},
	}))
	read := messagelimit.Reader(limit, conn.Read) // as of github.com/coder/websocket
	for {
		_, message, err := read(context.Background())
		var denied *messagelimit.DeniedError
		if errors.As(err, &denied) {
			fmt.Println("close with 1013, try again later:", err)
			return
		}
		fmt.Printf("%s\n", message)
	}
	// Output:
	// hello
	// hello
	// close with 1013, try again later: messagelimit: sluice: denied; retry after 500ms
}

// connection stands for one of a library of WebSockets.
type connection struct{}

func (connection) Read(context.Context) (kind int, message []byte, err error) {
	return 1, []byte("hello"), nil
}

var conn connection
