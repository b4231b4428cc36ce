package scrapers

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestScrapersThatDoNotRead: those that ask for a long answer and take nothing get the places there are, the next one is sent
// away with a word, and when the others have gone, by themselves or because their time was over, there are places again.
func TestScrapersThatDoNotRead(t *testing.T) {
	const most = 3
	long := bytes.Repeat([]byte("x"), 64<<20) // more than sockets hold
	began, ended := make(chan struct{}, most), make(chan error, most)
	server := httptest.NewServer(Limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/short" {
			fmt.Fprint(w, "short")
			return
		}
		began <- struct{}{}
		_, err := w.Write(long)
		ended <- err
	}), most))
	defer server.Close()
	hosts := 1
	ask := func(seconds string) net.Conn {
		t.Helper()
		hosts++ // each comes from an address of its own
		from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(hosts))}}
		c, err := from.Dial("tcp", strings.TrimPrefix(server.URL, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: x\r\n%s: %s\r\n\r\n", timeoutHeader, seconds); err != nil {
			t.Fatal(err)
		}
		<-began
		return c
	}
	get := func() (status int, retry, body string) {
		t.Helper()
		answer, err := http.Get(server.URL + "/short")
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer.StatusCode, answer.Header.Get("Retry-After"), string(text)
	}
	free := func() {
		t.Helper()
		for due := time.Now().Add(time.Minute); ; { // a place is free a moment after the write has failed
			status, _, body := get()
			if status == http.StatusOK && body == "short" {
				return
			}
			if time.Now().After(due) {
				t.Fatalf("when a scraper has gone: %d, %q", status, body)
			}
		}
	}

	var waiting []net.Conn
	for range most {
		waiting = append(waiting, ask("60"))
	}
	if status, retry, body := get(); status != http.StatusServiceUnavailable || retry != "1" || !strings.HasPrefix(body, "3 scrapes are being answered") {
		t.Errorf("beyond the limit: %d, Retry-After %q, %q", status, retry, body)
	}
	for _, c := range waiting {
		c.Close()
	}
	for range most {
		<-ended
	}
	free()

	for range most {
		defer ask("0.1").Close() // which stays open, and reads nothing
		if err := <-ended; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("an answer that nobody reads ends with %v", err)
		}
	}
	free()
}

// TestOneAddress: scrapers of one address that do not read leave places to others, and other addresses get all of them.
func TestOneAddress(t *testing.T) {
	const most = 5
	began, goOn := make(chan struct{}), make(chan struct{})
	handler := Limit(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/stay" {
			began <- struct{}{}
			<-goOn
		}
	}), most)
	var all sync.WaitGroup
	get := func(path, from string) (int, string) {
		r, w := httptest.NewRequest(http.MethodGet, path, nil), httptest.NewRecorder()
		r.RemoteAddr = from
		handler.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	stay := func(from string) {
		all.Go(func() { get("/stay", from) })
		<-began
	}
	check := func(reason, from string, status int, text string) {
		t.Helper()
		if code, body := get("/", from); code != status || !strings.HasPrefix(body, text) {
			t.Errorf("%s: %d, %q", reason, code, body)
		}
	}
	const own, other = http.StatusServiceUnavailable, http.StatusOK
	stay("127.0.0.1:1000")
	check("a second of the same address", "127.0.0.1:1001", other, "")
	stay("127.0.0.1:1002")
	check("a third of the same address", "127.0.0.1:1003", own, "2 scrapes of 127.0.0.1 are being answered")
	check("of another", "[::1]:1003", other, "")
	stay("[::1]:1004")
	stay("[::1]:1005")
	check("a third of that one", "[::1]:1006", own, "2 scrapes of ::1 are being answered")
	stay("192.0.2.1:1")
	check("when all places are taken", "192.0.2.2:1", own, "5 scrapes are being answered")
	close(goOn)
	all.Wait()
	check("when they have gone", "127.0.0.1:1", other, "")
}

// TestSlowReader: who reads within its time gets all.
func TestSlowReader(t *testing.T) {
	long := bytes.Repeat([]byte("0123456789abcdef"), 1<<20)
	server := httptest.NewServer(Limit(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(long) }), 1))
	defer server.Close()
	answer, err := http.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var got bytes.Buffer
	if _, err := got.ReadFrom(bufio.NewReaderSize(answer.Body, 100)); err != nil || !bytes.Equal(got.Bytes(), long) {
		t.Errorf("read %d of %d bytes, %v", got.Len(), len(long), err)
	}
}

func TestPatience(t *testing.T) {
	for header, want := range map[string]time.Duration{
		"": patience, "x": patience, "0": patience, "-1": patience, "NaN": patience, "+Inf": maxPatience, "1e300": maxPatience, "3": 3 * time.Second, "0.25": 250 * time.Millisecond,
	} {
		r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
		r.Header.Set(timeoutHeader, header)
		if got := patienceOf(r); got != want {
			t.Errorf("%q: %v, not %v", header, got, want)
		}
	}
}
