package docrun

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Page is a file of Markdown with its fenced blocks.
type Page struct {
	File   string // from the root of the repository, with slashes
	Blocks []Block
}

// Block is a fenced block of a page.
type Block struct {
	Page string
	Line int    // of its first line of text, from 1
	Lang string // what stands behind the opening fence
	Mark Mark   // zero: nobody said who runs it
	Text string // every line ends with a newline
}

// Mark says who runs a block. It is written as an HTML comment of one line, which readers don't see:
//
//	<!-- run: RUNNER [until=60s] [exit=1] [numbers=any] [output=any] -->
//	<!-- not run: REASON -->
//	<!-- same as: FILE -->
//
// Right before a fence it is of that block alone; anywhere else it is of every block from there on that a shell could run
// and that has none of its own.
type Mark struct {
	Runner string // who runs the block; "" when nobody does
	Reason string // why nobody runs it
	SameAs string // the file, from the root of the repository, that the block repeats

	Until   time.Duration // a command is repeated for so long until its output is as it stands; 0: it is run once
	Exit    int           // exit status of the block's last command
	Numbers bool          // any number may stand where the page has one
	Output  bool          // any output will do: what stands in the page is an example, such as a measurement
}

// Shells are the languages of blocks that a reader types into a shell.
func Shells() []string { return []string{"console", "sh", "bash", "shell"} }

// Runnable says whether a reader would type the block into a shell.
func (b Block) Runnable() bool { return slices.Contains(Shells(), b.Lang) }

// Where gives FILE:LINE.
func (b Block) Where() string { return fmt.Sprintf("%s:%d", b.Page, b.Line) }

// Pages reads every page of the repository that lies at root, in the order of their names: the Markdown files at the root, in
// docs/ and in monitoring/.
func Pages(root string) ([]Page, error) {
	var files []string
	for _, dir := range []string{".", "docs", "monitoring"} {
		err := fs.WalkDir(os.DirFS(root), dir, func(file string, entry fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case entry.IsDir() && dir == "." && file != ".":
				return fs.SkipDir
			case !entry.IsDir() && path.Ext(file) == ".md":
				files = append(files, file)
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("look for pages in %s: %w", filepath.Join(root, dir), err)
		}
	}
	slices.Sort(files)
	var pages []Page
	for _, file := range files {
		page, err := Read(root, file)
		if err != nil {
			return nil, err
		}
		pages = append(pages, page)
	}
	return pages, nil
}

// Read reads one page; file is from root, with slashes.
func Read(root, file string) (Page, error) {
	text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(file)))
	if err != nil {
		return Page{}, fmt.Errorf("read page %s: %w", file, err)
	}
	return Parse(file, string(text))
}

// Run gives the blocks of the page that a runner runs, in their order.
func (p Page) Run(runner string) []Block {
	var blocks []Block
	for _, block := range p.Blocks {
		if block.Runnable() && block.Mark.Runner == runner {
			blocks = append(blocks, block)
		}
	}
	return blocks
}

// Parse finds the blocks of a page's text. A mark that is none, and a block without an end, are errors with their line.
func Parse(file, text string) (Page, error) {
	page := Page{File: file}
	var general, own Mark // of what follows, and of the fence that comes next
	hasOwn := false
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		indent, fence, lang := opening(lines[i])
		if fence == "" {
			mark, found, err := parseMark(lines[i])
			if err != nil {
				return Page{}, fmt.Errorf("%s:%d: %w", file, i+1, err)
			}
			if hasOwn = found; found {
				own = mark
			}
			if _, next, _ := opening(lineAt(lines, i+1)); found && next == "" {
				if mark.SameAs != "" {
					return Page{}, fmt.Errorf("%s:%d: the mark 'same as' stands before no block", file, i+1)
				}
				general, hasOwn = mark, false
			}
			continue
		}
		block := Block{Page: file, Line: i + 2, Lang: lang}
		switch {
		case hasOwn:
			block.Mark = own
		case block.Runnable():
			block.Mark = general
		}
		hasOwn = false
		var b strings.Builder
		for i++; ; i++ {
			if i == len(lines) {
				return Page{}, fmt.Errorf("%s:%d: the block has no end", file, block.Line-1)
			}
			line := strings.TrimPrefix(lines[i], indent)
			if strings.TrimRight(line, " ") == fence {
				break
			}
			b.WriteString(line + "\n")
		}
		block.Text = b.String()
		page.Blocks = append(page.Blocks, block)
	}
	return page, nil
}

func lineAt(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return ""
}

// opening takes a line that opens a block apart; fence is "" for every other line.
func opening(line string) (indent, fence, lang string) {
	rest := strings.TrimLeft(line, " ")
	info := strings.TrimLeft(rest, "`")
	if n := len(rest) - len(info); n >= 3 && !strings.Contains(info, "`") {
		return line[:len(line)-len(rest)], rest[:n], strings.TrimSpace(info)
	}
	return "", "", ""
}

// parseMark reads a comment line; found is false for a line that is none or that says something else.
func parseMark(line string) (mark Mark, found bool, err error) {
	text, ok := strings.CutPrefix(strings.TrimSpace(line), "<!--")
	if !ok {
		return Mark{}, false, nil
	}
	text, ok = strings.CutSuffix(text, "-->")
	kind, rest, colon := strings.Cut(strings.TrimSpace(text), ":")
	rest = strings.TrimSpace(rest)
	if !colon {
		return Mark{}, false, nil
	}
	switch kind {
	case "not run", "same as", "run":
	default:
		return Mark{}, false, nil
	}
	switch {
	case !ok:
		return Mark{}, false, fmt.Errorf("the mark %q has no --> on its line", kind)
	case rest == "":
		return Mark{}, false, fmt.Errorf("the mark %q says nothing behind the colon", kind)
	case kind == "not run":
		return Mark{Reason: rest}, true, nil
	case kind == "same as":
		return Mark{SameAs: rest}, true, nil
	}
	fields := strings.Fields(rest)
	mark.Runner = fields[0]
	for _, field := range fields[1:] {
		if err := mark.option(field); err != nil {
			return Mark{}, false, err
		}
	}
	return mark, true, nil
}

// option reads one KEY=VALUE of a mark.
func (m *Mark) option(field string) (err error) {
	key, value, _ := strings.Cut(field, "=")
	switch key {
	case "until":
		if m.Until, err = time.ParseDuration(value); err == nil && m.Until <= 0 {
			err = fmt.Errorf("%s is no time to wait", m.Until)
		}
	case "exit":
		if m.Exit, err = strconv.Atoi(value); err == nil && (m.Exit < 0 || m.Exit > 255) {
			err = fmt.Errorf("%d is no exit status", m.Exit)
		}
	case "numbers":
		if m.Numbers = value == "any"; !m.Numbers {
			err = fmt.Errorf("want numbers=any")
		}
	case "output":
		if m.Output = value == "any"; !m.Output {
			err = fmt.Errorf("want output=any")
		}
	default:
		err = fmt.Errorf("want until=, exit=, numbers= or output=")
	}
	if err != nil {
		return fmt.Errorf("option %s of the mark: %w", field, err)
	}
	return nil
}
