package image

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// UserID is the user and group that programs in images run as.
const UserID = 65532

const (
	homeDir = "/home/nonroot"
	binDir  = "/usr/local/bin"
)

// epoch is the time of every file and of the image itself, so that the bytes depend on the source alone.
var epoch = time.Unix(0, 0).UTC()

// assemble makes an image of one program for a Go architecture.
func assemble(spec Spec, architecture string, program []byte) (v1.Image, error) {
	name := spec.Name
	files, err := layerTar(name, spec.Alias, program)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files)), nil })
	if err != nil {
		return nil, fmt.Errorf("make the layer: %w", err)
	}
	image, err := mutate.Append(empty.Image, mutate.Addendum{
		Layer:   layer,
		History: v1.History{Created: v1.Time{Time: epoch}, CreatedBy: "hack/images", Comment: name},
	})
	if err != nil {
		return nil, fmt.Errorf("append the layer: %w", err)
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	file = file.DeepCopy()
	file.Created = v1.Time{Time: epoch}
	file.OS, file.Architecture = "linux", architecture
	file.Config = v1.Config{
		User:       fmt.Sprintf("%d:%d", UserID, UserID),
		Entrypoint: []string{binDir + "/" + name},
		Env:        []string{"PATH=" + binDir, "HOME=" + homeDir},
		WorkingDir: homeDir,
		Labels:     map[string]string{"org.opencontainers.image.title": name},
	}
	image, err = mutate.ConfigFile(image, file)
	if err != nil {
		return nil, fmt.Errorf("set the configuration: %w", err)
	}
	return image, nil
}

// layerTar returns the files of the only layer: the program, /etc/passwd and /etc/group with its user, its home
// and a /tmp that anyone may write to. Unless alias is empty, a link there leads to the program.
func layerTar(name, alias string, program []byte) ([]byte, error) {
	id := strconv.Itoa(UserID)
	passwd := "root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:" + id + ":" + id + ":nonroot:" + homeDir + ":/sbin/nologin\n"
	group := "root:x:0:\nnonroot:x:" + id + ":\n"

	var buffer bytes.Buffer
	writer := tar.NewWriter(&buffer)
	for _, entry := range []struct {
		path  string
		mode  int64
		owner int
		data  []byte // Nil makes a folder.
	}{
		{"etc/", 0o755, 0, nil},
		{"etc/group", 0o644, 0, []byte(group)},
		{"etc/passwd", 0o644, 0, []byte(passwd)},
		{"home/", 0o755, 0, nil},
		{homeDir[1:] + "/", 0o750, UserID, nil},
		{"tmp/", 0o1777, 0, nil},
		{"usr/", 0o755, 0, nil},
		{"usr/local/", 0o755, 0, nil},
		{binDir[1:] + "/", 0o755, 0, nil},
		{binDir[1:] + "/" + name, 0o755, 0, program},
	} {
		header := &tar.Header{
			Name: entry.path, Mode: entry.mode, Uid: entry.owner, Gid: entry.owner,
			ModTime: epoch, Typeflag: tar.TypeDir, Format: tar.FormatPAX,
		}
		if entry.data != nil {
			header.Typeflag, header.Size = tar.TypeReg, int64(len(entry.data))
		}
		if err := writer.WriteHeader(header); err != nil {
			return nil, fmt.Errorf("write %s into the layer: %w", entry.path, err)
		}
		if _, err := writer.Write(entry.data); err != nil {
			return nil, fmt.Errorf("write %s into the layer: %w", entry.path, err)
		}
	}
	if alias != "" {
		header := &tar.Header{
			Name: strings.TrimPrefix(alias, "/"), Linkname: binDir + "/" + name, Mode: 0o777,
			ModTime: epoch, Typeflag: tar.TypeSymlink, Format: tar.FormatPAX,
		}
		if err := writer.WriteHeader(header); err != nil {
			return nil, fmt.Errorf("write %s into the layer: %w", alias, err)
		}
	}
	if err := writer.Close(); err != nil {
		return nil, fmt.Errorf("close the layer: %w", err)
	}
	return buffer.Bytes(), nil
}
